"""An app whose second client does wrong."""
