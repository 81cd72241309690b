"""Every table of the paper: its numbers, our configs, and the runs that put both side by side."""
