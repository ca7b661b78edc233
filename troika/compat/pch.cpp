// Exists so that the precompiled header shared by all rooms with LibTorch has a target to live in.
#include "troika/compat/torch.h"
