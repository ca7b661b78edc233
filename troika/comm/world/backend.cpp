#include "troika/comm/messages/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/comm/mailboxes.h"

namespace troika::comm {

namespace {

constexpr std::array kBackends{
    Backend{"shm", shm::why_unavailable, shm::make, shm::most_mailbox_bytes},
    Backend{"tcp", tcp::why_unavailable, tcp::make, tcp::most_mailbox_bytes},
    Backend{"gloo", gloo::why_unavailable, gloo::make, nullptr},
    Backend{"mpi", mpi::why_unavailable, mpi::make, nullptr},
};

const Backend& row_of(std::string_view name) {
  const auto row = std::ranges::find(kBackends, name, &Backend::name);
  if (row != kBackends.end()) return *row;
  std::vector<std::string> names{"auto"};
  for (const Backend& b : kBackends) names.emplace_back(b.name);
  throw Error("comm", ErrorKind::usage,
              {.what = "unknown back end",
               .got = std::string(name),
               .hint = "did you mean " + nearest(name, names) + "?"});
}

}  // namespace

std::span<const Backend> backends() {
  return kBackends;
}

const Backend& backend(std::string_view name) {
  const Backend& row = row_of(name);
  if (const std::string reason = row.why_unavailable(); !reason.empty()) {
    throw Error("comm", ErrorKind::usage,
                {.what = "back end " + std::string(name) + " is not available", .got = reason});
  }
  return row;
}

int64_t most_mailbox_bytes(std::string_view backend, int ranks, int nodes) {
  if (backend != "auto") {
    const Backend& row = row_of(backend);
    return ranks > 1 && row.most_mailbox_bytes ? row.most_mailbox_bytes(ranks) : 0;
  }
  if (ranks <= 1) return 0;
  if (nodes <= 1) return shm::most_mailbox_bytes(ranks);
  const int most_inside = (ranks + nodes - 1) / nodes;
  const int most_outside = ranks - ranks / nodes;
  return shm::most_mailbox_bytes(most_inside) + tcp::most_mailbox_bytes(most_outside + 1);
}

bool copies_messages(std::string_view backend, int nodes) {
  if (backend == "auto") return nodes <= 1;
  return row_of(backend).name == std::string_view("shm");
}

net::Protection protection_for(std::string_view backend, const std::string& name) {
  const auto protection = net::protection_from(name);
  if (protection == net::Protection::none || backend == "tcp" || backend == "shm") {
    return protection;
  }
  throw Error("comm", ErrorKind::usage,
              {.what = fmt::format("back end {} cannot protect messages", backend),
               .got = "protection " + name,
               .expected = "none",
               .hint = "choose back end tcp"});
}

}  // namespace troika::comm
