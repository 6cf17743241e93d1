"""The benchmarks of `talos bench` and `make bench`: a distribution of its own, installed as `talos_benchmarks`."""
