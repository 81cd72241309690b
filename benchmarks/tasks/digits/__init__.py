"""Digits: a small convolutional network on 5,000 images of MNIST."""
