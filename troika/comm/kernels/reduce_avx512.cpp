#define TROIKA_REDUCE reduce_avx512
#include "troika/comm/kernels/reduce_impl.h"
