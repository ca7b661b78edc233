#define TROIKA_REDUCE reduce_baseline
#include "troika/comm/kernels/reduce_impl.h"
