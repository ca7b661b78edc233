#include "troika/train/engine/swarm_steps.h"

#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/train/options/options.h"

namespace troika::train {

void SwarmSteps::leave_out(int64_t samples) const {
  if (setup().options.trainer.terminate_on_nan) {
    throw Error("train", ErrorKind::failure,
                {.what = "the gradients of this peer are not finite",
                 .got = "inf or nan",
                 .expected = "numbers",
                 .hint = "the other peers go on without it; trainer.terminate_on_nan=false "
                         "leaves its samples out and trains on"});
  }
  log::warn("[swarm] gradients that are not finite: {} samples are left out", samples);
}

void SwarmSteps::finish(MicroBatches& batches, Portion& own) {
  if (own.loss) batches.done(*std::exchange(own.loss, std::nullopt));
}

void SwarmSteps::end_step(MicroBatches& batches, Portion& own) {
  if (!own.loss) return batches.end_without();
  batches.end_with_next();
  finish(batches, own);
}

}  // namespace troika::train
