#include "troika/train/engine/make_whole.h"

#include "troika/base/error.h"
#include "troika/base/log.h"

namespace troika::train {

void try_whole(const std::function<void()>& make_whole, const comm::Group& world) {
  try {
    make_whole();
  } catch (const std::exception& problem) {
    log::warn("the module is left without the parameters that ranks share out: {}", problem.what());
    return;
  }
  // A rank that exits makes the world fail, so no rank leaves before all have their parameters. If
  // this barrier fails, a rank has left after it, so all have them.
  try {
    world.barrier({.label = "parameters"});
  } catch (const Error&) {
  }
}

}  // namespace troika::train
