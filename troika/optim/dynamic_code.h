// 8-bit codes of numbers in [-1, 1] or [0, 1], dense near 0.
#pragma once

#include "troika/optim/kernels/kernels.h"

namespace troika::optim {

// Dynamic tree quantisation (Dettmers 2016, arXiv 1511.04561; with sign and without in Dettmers et
// al. 2022, arXiv 2110.02861, section 2.1): seven decades, each with twice as many evenly spaced
// fractions as the one below, and 0 and 1. Numbers of the code are those of bitsandbytes 0.41
// (`create_dynamic_map`). Signed, -1 has no code: the nearest is about -0.993.
kernels::Code dynamic_code(bool has_sign);

}  // namespace troika::optim
