"""Paper scale: ESTR in an unmodified verl (`estr.cluster.verl`) and SGLang (`estr.cluster.sglang`), and its launch."""
