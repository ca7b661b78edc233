#include "troika/parallel/servers/measured_links.h"

#include <algorithm>

#include "troika/base/clock.h"
#include "troika/compat/torch.h"
#include "troika/server/summation.h"

namespace troika::parallel {

namespace {

constexpr double kLongEnough = 0.05;  // seconds
constexpr size_t kLeastProbe = size_t{1} << 18;
constexpr size_t kMostProbe = size_t{1} << 24;  // bytes
constexpr size_t kPieces = 4;                   // of a probe, so that a link is never idle

// Returns the seconds until the server has what the senders send it.
double seconds_of_probe(const comm::Group& group, server::SummationClient& client, size_t server,
                        bool sends, std::string& bytes) {
  group.barrier({.label = "measurement of links"});
  const Stopwatch watch;
  if (sends) {
    std::vector<server::SummationPiece> pieces;
    const size_t size = bytes.size() / kPieces;
    for (size_t i = 0; i < kPieces; ++i) {
      pieces.push_back({.key = i,
                        .server = server,
                        .action = server::SummationAction::probe,
                        .values = std::span(bytes).subspan(i * size, size)});
    }
    client.push(std::move(pieces));
    client.wait(Deadline::after(group.options().timeout));
  }
  const auto seconds = at::full({1}, watch.seconds(), at::kDouble);
  group.all_reduce(seconds, comm::ReduceOp::max, {.label = "measurement of links"}).wait();
  return seconds.item<double>();
}

}  // namespace

std::vector<double> measure_links(const comm::Group& group, net::Endpoint& endpoint,
                                  const std::vector<std::string>& servers) {
  const auto ranks = static_cast<size_t>(group.size());
  const size_t spares = servers.size() - ranks;
  server::SummationClient client(endpoint, {.rank = static_cast<uint32_t>(group.rank()),
                                            .workers = static_cast<uint32_t>(ranks),
                                            .servers = servers});
  if (ranks == 1) return std::vector<double>(servers.size(), 1);  // nothing crosses a link
  const auto& nodes = group.nodes();
  const bool is_one_node = std::ranges::all_of(nodes, [&](int node) { return node == nodes[0]; });
  const auto own = static_cast<size_t>(group.rank());
  std::vector<double> rates;
  for (size_t s = 0; s < servers.size(); ++s) {
    const bool is_spare = s < spares;
    // Ranks of the server's node reach it without its link.
    const auto is_beside = [&](size_t rank) {
      const size_t home = s - spares;
      return !is_spare && (is_one_node ? rank == home : nodes[rank] == nodes[home]);
    };
    size_t senders = 0;
    for (size_t rank = 0; rank < ranks; ++rank) senders += is_beside(rank) ? 0 : 1;
    const size_t sharing = is_spare || is_one_node ? 1 : ranks - senders;
    double seconds = 0;
    size_t bytes = kLeastProbe / 4;
    while (seconds < kLongEnough && bytes < kMostProbe) {
      bytes *= 4;
      std::string values(bytes, 0);
      seconds = seconds_of_probe(group, client, s, !is_beside(own), values);
    }
    rates.push_back(static_cast<double>(senders * bytes) / seconds / static_cast<double>(sharing));
  }
  return rates;
}

}  // namespace troika::parallel
