"""Dense networks and Adam as machine code, made by LLVM when the learner starts."""
