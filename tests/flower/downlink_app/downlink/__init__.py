"""An app whose model can be of any size."""
