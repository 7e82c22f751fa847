"""Running a target: KV caches, one forward over many sessions, and the proof that it is exact."""
