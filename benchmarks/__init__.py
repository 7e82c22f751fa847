"""Load and faults against real nodes on loopback; what each script measures is in README.md."""
