// Times in milliseconds and bubble rates of Qi et al. 2024, arXiv 2401.10241, tables 5 and 6.
#pragma once

#include <array>

#include "troika/layout/schedules/replay.h"

namespace troika::plan {

struct ZeroBubbleRow {
  int ranks;
  int micro_batches;
  layout::StageTimes times;
  double one_forward_one_backward;
  double zb_h1;
  double zb_h2;
  double zb_2p;  // found by the authors' search, with the memory of twice as many activations
};

inline constexpr std::array<ZeroBubbleRow, 4> kZeroBubbleRows{
    {{8, 24, {18.522, 18.086, 9.337, 0.601}, .2431, .1585, .1083, .0433},
     {8, 24, {29.718, 29.444, 19.927, 0.527}, .2347, .1323, .0698, .0029},
     {16, 48, {11.347, 11.248, 8.132, 0.377}, .2552, .1397, .0672, .0066},
     {32, 96, {10.419, 10.207, 7.715, 0.408}, .2646, .1421, .0641, .0038}}};

}  // namespace troika::plan
