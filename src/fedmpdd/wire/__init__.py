"""Updates as bytes: frames, bundles, and messages to catch up with."""
