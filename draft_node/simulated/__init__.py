"""Assistants for benchmarks: one whose passes take a set time and no core, one that is of no use.

Everything around them is the draft node as it is: drafter, drafting loop, gateway.
"""
