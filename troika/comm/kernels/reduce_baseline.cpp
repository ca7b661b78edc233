#define TROIKA_REDUCE reduce_baseline
#include "troika/comm/kernels/kernels_impl.h"
