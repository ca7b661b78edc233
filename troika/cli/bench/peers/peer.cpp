#include "troika/cli/bench/peers/peer.h"

#include <algorithm>
#include <array>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::cli::bench {

namespace {

constexpr std::array kPeers{
    PeerRow{"gloo", "gloo (c10d)", gloo::why_unavailable, gloo::make},
    PeerRow{"mpi", "mpi (MPI_Allreduce)", mpi::why_unavailable, mpi::make},
};

}  // namespace

const PeerRow& peer(std::string_view name) {
  const auto row = std::ranges::find(kPeers, name, &PeerRow::name);
  if (row == kPeers.end()) {
    std::vector<std::string> names;
    for (const PeerRow& known : kPeers) names.emplace_back(known.name);
    throw Error("bench", ErrorKind::usage,
                {.what = "unknown peer",
                 .got = std::string(name),
                 .hint = "did you mean " + nearest(name, names) + "?"});
  }
  if (const std::string reason = row->why_unavailable(); !reason.empty()) {
    throw Error("bench", ErrorKind::usage,
                {.what = "peer " + std::string(name) + " is not available", .got = reason});
  }
  return *row;
}

}  // namespace troika::cli::bench
