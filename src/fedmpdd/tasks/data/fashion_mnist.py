"""Fashion-MNIST: 70,000 pictures of clothes in the form of MNIST."""

from functools import partial

from fedmpdd.tasks.data import idx
from fedmpdd.tasks.data.base import Source

SOURCE = Source(
    "fashion-mnist",
    partial(idx.load, "fashion-mnist", mean=0.2860, std=0.3530),
    idx.files(
        "fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    partial(idx.find, "fashion-mnist"),
)
