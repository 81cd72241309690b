"""Side-by-side timings, each rival in the same process."""
