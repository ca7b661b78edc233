#include "troika/train/callbacks/monitor.h"

#include <limits>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::train {

double Monitor::worst() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return is_max ? -kInfinity : kInfinity;
}

void refuse_monitor(const std::string& callback, const std::string& monitored,
                    const std::map<std::string, double>& known) {
  std::vector<std::string> names;
  std::string list;
  for (const auto& [name, value] : known) {
    names.push_back(name);
    list += (list.empty() ? "" : ", ") + name;
  }
  throw Error("train", ErrorKind::usage,
              {.what = callback + " cannot monitor " + monitored,
               .got = "no such metric among those that are the same on all ranks",
               .expected = list.empty() ? "one that is logged" : "one of " + list,
               .hint = "did you mean " + nearest(monitored, names) +
                       "? a task's own must be logged with sync_dist"});
}

}  // namespace troika::train
