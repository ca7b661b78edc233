// The events of a trace by name.
#pragma once

#include <string>
#include <vector>

#include "troika/base/trace.h"

namespace troika::parallel {

inline std::vector<TraceEvent> named_events(const Trace& trace, const std::string& name) {
  auto events = trace.events();
  std::erase_if(events, [&](const TraceEvent& event) { return event.name != name; });
  return events;
}

}  // namespace troika::parallel
