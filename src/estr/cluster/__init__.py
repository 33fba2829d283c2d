"""Paper scale: ESTR inside an unmodified verl (`estr.cluster.verl`) and SGLang (`estr.cluster.sglang`), and its launch."""
