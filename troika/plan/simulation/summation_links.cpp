#include "troika/plan/simulation/summation_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "troika/plan/errors/refuse.h"

namespace troika::plan {

namespace {

double bandwidth_of(const LinkUse& use, const std::vector<double>& bandwidths) {
  return bandwidths[static_cast<size_t>(use.link)];
}

// Returns the rate at which data of all senders together comes to a device, if each sends as much.
double rate_of_probe(const std::vector<int>& senders, int device, const ClusterLinks& links,
                     const std::vector<double>& bandwidths) {
  const auto count = static_cast<double>(senders.size());
  std::map<int, int> sharing;  // senders, by their link
  double rate = kUnlimited;
  for (const int sender : senders) {
    const auto uses = links.path(sender, device).uses;
    ++sharing[uses.front().link];
    rate = std::min(rate, bandwidth_of(uses.back(), bandwidths));
  }
  for (const auto& [link, sending] : sharing) {
    rate = std::min(rate, count / sending * bandwidth_of({.link = link}, bandwidths));
  }
  return rate;
}

}  // namespace

std::vector<int> summing_ranks(const std::vector<int>& ranks, const ClusterLinks& links) {
  std::set<int> hosts;
  std::vector<int> first;
  for (const int rank : ranks) {
    if (hosts.insert(links.host(rank)).second) first.push_back(rank);
  }
  return hosts.size() > 1 ? first : ranks;
}

std::vector<double> measured_rates(const std::vector<int>& workers, const std::vector<int>& spares,
                                   const ClusterLinks& links) {
  if (workers.size() == 1) return std::vector<double>(spares.size() + 1, 1);
  const auto bandwidths = links.bandwidths();
  const bool is_one_host = std::ranges::all_of(
      workers, [&](int worker) { return links.host(worker) == links.host(workers.front()); });
  std::vector<double> rates;
  for (const int spare : spares) rates.push_back(rate_of_probe(workers, spare, links, bandwidths));
  for (const int worker : workers) {
    std::vector<int> senders;
    for (const int one : workers) {
      if (is_one_host ? one != worker : links.host(one) != links.host(worker)) {
        senders.push_back(one);
      }
    }
    const auto beside = is_one_host ? 1 : workers.size() - senders.size();
    rates.push_back(rate_of_probe(senders, worker, links, bandwidths) /
                    static_cast<double>(beside));
  }
  return rates;
}

layout::SummationSplit summation_split(const std::string& asked, const std::vector<int>& workers,
                                       const std::vector<int>& spares, const ClusterLinks& links) {
  const auto count = static_cast<int>(workers.size());
  const auto more = static_cast<int64_t>(spares.size());
  if (asked != layout::kMeasuredBandwidths) {
    return layout::split_by_links(layout::read_links(asked, count, more), more);
  }
  const auto rates = measured_rates(workers, spares, links);
  const auto unknown = std::ranges::find_if(rates, [](double rate) { return std::isinf(rate); });
  if (unknown == rates.end()) return layout::split_by_links(rates, more);
  if (std::ranges::all_of(rates, [](double rate) { return std::isinf(rate); })) {
    return layout::split_sums(count, static_cast<int>(more));
  }
  const auto place = static_cast<size_t>(unknown - rates.begin());
  const bool is_spare = place < spares.size();
  const int device = is_spare ? spares[place] : workers[place - spares.size()];
  refuse("summation.links of a simulation",
         fmt::format("measured, and a link to {} {} of unknown bandwidth",
                     is_spare ? "the server on device" : "the server beside rank", device),
         "known bandwidths of all links to servers, or of none");
}

}  // namespace troika::plan
