// Texts of schedules: read, written, completed if they have only passes, and verified.
#include "troika/layout/schedules/schedule.h"

#include "tests/fuzz/fuzz.h"
#include "troika/base/error.h"
#include "troika/layout/schedules/complete.h"
#include "troika/layout/schedules/table.h"

namespace troika::fuzz {

std::vector<std::string> seeds() {
  std::vector<std::string> texts;
  for (const auto& name : layout::schedule_names()) {
    const auto schedule = layout::make_schedule(name, {.ranks = 2, .micro_batches = 4});
    texts.push_back(schedule.text());
    texts.push_back(passes_of(schedule).text());
  }
  texts.emplace_back(
      "0F0 0SEND_F0 0SEND_F0>2 (0RECV_B0<2;0RECV_B0) 0B0 0STEP\n"
      "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0 1STEP\n"
      "2RECV_F0<0 2RECV_F0 2F0 2B0 2SEND_B0>0 2SEND_B0 2STEP\n");
  return texts;
}

void run(std::string_view input) {
  try {
    const auto schedule = layout::read_schedule(input, "fuzz");
    if (layout::Schedule::parse(schedule.text()) != schedule) throw std::string("another schedule");
  } catch (const Error&) {
  }
}

}  // namespace troika::fuzz
