#include "troika/plan/simulation/host_sums.h"

#include <algorithm>
#include <map>
#include <utility>

#include "troika/layout/summation.h"
#include "troika/plan/simulation/collective_rounds.h"

namespace troika::plan {

HostSums::HostSums(ServedRanks& ranks, Calls calls)
    : ranks_(ranks),
      calls_(std::move(calls)),
      sums_(ranks_,
            {.added = calls_.added, .landed = [this](int rank, size_t) { give(host_of(rank)); }}),
      waits_(static_cast<size_t>(ranks.ranks()), false) {
  const bool sums_on_hosts = ranks.run().sums_on_hosts();
  std::map<int, size_t> places;
  for (int rank = 0; rank < ranks.ranks(); ++rank) {
    const int host = sums_on_hosts ? ranks.links().host(rank) : rank;
    const auto [place, is_new] = places.try_emplace(host, hosts_.size());
    if (is_new) hosts_.emplace_back();
    host_of_.push_back(place->second);
    host_of(rank).ranks.push_back(rank);
  }
}

void HostSums::push(int rank, size_t bucket) {
  auto& host = host_of(rank);
  if (host.ranks.size() == 1) return sums_.push(rank, bucket);
  auto pushed = std::ranges::find(host.unsummed, bucket, &Pushed::bucket);
  if (pushed == host.unsummed.end()) {
    pushed = host.unsummed.insert(pushed, {.bucket = bucket, .missing = host.ranks.size()});
  }
  --pushed->missing;
  sum(host);
}

void HostSums::sum(Host& host) {
  if (host.is_summing || host.unsummed.empty() || host.unsummed.front().missing > 0) return;
  host.is_summing = true;
  const size_t bucket = host.unsummed.front().bucket;
  for (const int rank : host.ranks) ranks_.begin_message(rank);
  move(phase(host, bucket, true), [this, &host, bucket] {
    for (const int rank : host.ranks) ranks_.end_message(rank);
    host.is_summing = false;
    host.unsummed.pop_front();
    sums_.push(host.ranks.front(), bucket);
    sum(host);
    give(host);
  });
}

void HostSums::take(int rank, const std::vector<size_t>& buckets) {
  auto& host = host_of(rank);
  host.asked = buckets;
  ++host.asking;
  give(host);
  if (host.asking == 0 && host.ranks.size() == 1) return;
  waits_[static_cast<size_t>(rank)] = true;
  ranks_.begin_wait(rank);
}

void HostSums::give(Host& host) {
  if (host.asking < host.ranks.size() || !host.unsummed.empty()) return;
  const auto found = std::ranges::find_if(
      host.asked, [&](size_t bucket) { return sums_.has_landed(host.ranks.front(), bucket); });
  if (found == host.asked.end()) return;
  host.asking = 0;
  const size_t bucket = *found;
  if (host.ranks.size() == 1) return end_give(host, bucket);
  move(phase(host, bucket, false), [this, &host, bucket] { end_give(host, bucket); });
}

void HostSums::end_give(const Host& host, size_t bucket) {
  for (const int rank : host.ranks) {
    if (waits_[static_cast<size_t>(rank)]) ranks_.end_wait(rank);
    waits_[static_cast<size_t>(rank)] = false;
    calls_.taken(rank, bucket);
  }
}

CollectivePhase HostSums::phase(const Host& host, size_t bucket, bool is_before) const {
  const auto& plan = ranks_.run().plan;
  const double bytes = ranks_.work().buckets[bucket].bytes *
                       layout::local_sum_share(plan.exchange.summation, plan.precision);
  return Rounds(host.ranks, ranks_.links(), ranks_.run().reduce_per_byte)
      .to_first(bytes, is_before);
}

void HostSums::move(const CollectivePhase& phase, Timeline::Call ends) {
  ranks_.timeline().after(phase.seconds, [this, phase, ends = std::move(ends)] {
    ranks_.timeline().move(phase.uses, phase.bytes, ends);
  });
}

}  // namespace troika::plan
