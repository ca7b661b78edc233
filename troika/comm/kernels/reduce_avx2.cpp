#define TROIKA_REDUCE reduce_avx2
#include "troika/comm/kernels/reduce_impl.h"
