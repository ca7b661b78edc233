#define TROIKA_TO_LEVELS to_levels_avx2
#define TROIKA_FROM_LEVELS from_levels_avx2
#include "troika/comm/kernels/levels_impl.h"
