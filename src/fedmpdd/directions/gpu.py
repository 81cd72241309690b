"""Whether a GPU can be used here, for who does not want to import PyTorch to find out."""

from fedmpdd.errors import BackendError


def why_no_gpu() -> str | None:
    """Return why nothing can be computed on a GPU here, None if it can."""
    try:
        import torch
    except ModuleNotFoundError:
        return "PyTorch is not installed"
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device here"
    try:
        from fedmpdd.directions import cuda  # noqa: F401 (whether it can be imported is the question)
    except BackendError as error:
        return str(error)
    return None
