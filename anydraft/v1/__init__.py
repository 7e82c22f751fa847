"""Generated from protos/anydraft/v1 by protos/generate.sh; do not edit."""
