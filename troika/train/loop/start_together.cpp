#include "troika/train/loop/start_together.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/train/engine/engine.h"

namespace troika::train {

void start_together(const comm::MeshGroups& groups, Engine& engine,
                    const std::function<void()>& body) {
  std::exception_ptr own;
  std::string text;
  try {
    body();
  } catch (const std::exception& problem) {
    own = std::current_exception();
    text = fmt::format("`{}`", problem.what());
  }
  const auto texts = groups.world().all_gather_text(text, "start");
  const auto failed =
      std::find_if(texts.begin(), texts.end(), [](const auto& one) { return !one.empty(); });
  if (failed == texts.end()) return;
  engine.try_to_make_whole();
  if (own) std::rethrow_exception(own);
  throw Error(
      "train", ErrorKind::peer,
      {.what = groups.describe(static_cast<int>(failed - texts.begin())) + " cannot start the run",
       .got = *failed});
}

void or_leave_module_whole(Engine& engine, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error&) {
    engine.try_to_make_whole();
    throw;
  }
}

}  // namespace troika::train
