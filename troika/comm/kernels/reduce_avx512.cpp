#define TROIKA_REDUCE reduce_avx512
#include "troika/comm/kernels/kernels_impl.h"
