#define TROIKA_TO_LEVELS to_levels_baseline
#define TROIKA_FROM_LEVELS from_levels_baseline
#include "troika/comm/kernels/levels_impl.h"
