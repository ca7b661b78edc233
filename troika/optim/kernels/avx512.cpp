#define TROIKA_KERNELS kAvx512
#include "troika/optim/kernels/kernels_impl.h"
