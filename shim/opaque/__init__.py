"""The engine: a function as one op that a compiler takes whole. It knows no single function."""
