#define TROIKA_KERNELS kAvx2
#include "troika/optim/kernels/kernels_impl.h"
