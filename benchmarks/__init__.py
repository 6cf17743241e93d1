"""What `talos bench` and `make bench` run; installed as `talos_benchmarks`."""
