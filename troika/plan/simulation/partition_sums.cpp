#include "troika/plan/simulation/partition_sums.h"

#include <algorithm>
#include <cmath>

#include "troika/layout/lead_bytes.h"
#include "troika/plan/simulation/summation_links.h"

namespace troika::plan {

PartitionSums::PartitionSums(ServedRanks& ranks, Calls calls)
    : ranks_(ranks),
      calls_(std::move(calls)),
      workers_(ranks.run().summation_workers()),
      queues_(ranks.timeline(), ranks.run().server_devices().size()) {
  const auto& run = ranks.run();
  const auto devices = run.server_devices();
  std::vector<int64_t> bytes;
  for (const auto& bucket : ranks.work().buckets) bytes.push_back(std::llround(bucket.bytes));
  const auto count = static_cast<size_t>(ranks.ranks());
  // A rank without others and without launched servers averages nothing.
  if (devices.size() > 1) {
    const auto shares =
        summation_split(options().links, workers_, run.spare_devices(), ranks.links()).shares();
    partitions_ = layout::partition_sums(bytes, options().partition_bytes, shares);
    for (const double share : shares) {
      if (options().asynchronous) break;
      lead_bytes_.push_back(layout::lead_bytes(share, options().partition_bytes));
    }
  }
  missing_.assign(count, std::vector<size_t>(bytes.size(), 0));
  pushes_.resize(partitions_.size());
  clients_.assign(count, {.pushed = std::vector<int64_t>(devices.size(), 0),
                          .levels = std::vector<int64_t>(devices.size(), 0),
                          .bucket_begin = std::vector<double>(bytes.size(), 0)});
  for (const int device : devices) {
    servers_.push_back({.device = device, .arrived = std::vector<int64_t>(count, 0)});
  }
}

void PartitionSums::push(int rank, size_t bucket) {
  auto& own = client(rank);
  own.bucket_begin[bucket] = ranks_.now();
  for (size_t i = 0; i < partitions_.size(); ++i) {
    if (partitions_[i].bucket != bucket) continue;
    // Gradients come in the reverse of the order in which the next forward pass uses parameters.
    own.queue.emplace(options().priorities ? -static_cast<int64_t>(i) : 0, i);
    ++missing_[static_cast<size_t>(rank)][bucket];
  }
  dispatch(rank);
}

bool PartitionSums::may_lead(const Client& client, const layout::Partition& partition) const {
  if (lead_bytes_.empty()) return true;
  const size_t server = partition.server;
  const int64_t ahead = std::max<int64_t>(client.pushed[server] - client.levels[server], 0);
  return ahead == 0 || ahead + partition.bytes <= lead_bytes_[server];
}

void PartitionSums::dispatch(int rank) {
  auto& own = client(rank);
  std::set<size_t> leading;  // servers whose partitions wait
  for (auto next = own.queue.begin(); next != own.queue.end();) {
    const size_t number = next->second;
    const auto& partition = partitions_[number];
    const int64_t credit = options().credit_bytes;
    if (credit > 0 && own.in_flight > 0 && own.in_flight + partition.bytes > credit) break;
    if (leading.size() == servers_.size()) break;
    if (leading.contains(partition.server) || !may_lead(own, partition)) {
      leading.insert(partition.server);
      ++next;
      continue;
    }
    next = own.queue.erase(next);
    send(rank, number);
  }
}

void PartitionSums::send(int rank, size_t number) {
  const auto& partition = partitions_[number];
  auto& own = client(rank);
  own.in_flight += partition.bytes;
  own.pushed[partition.server] += partition.bytes;
  const auto bytes = static_cast<double>(partition.bytes);
  ranks_.begin_message(rank);
  ranks_.count_sent(rank, bytes);
  ranks_.timeline().send_beside(rank, servers_[partition.server].device, bytes,
                                [this, rank, number] { arrive(rank, number); });
}

void PartitionSums::arrive(int rank, size_t number) {
  const auto& partition = partitions_[number];
  auto& server = servers_[partition.server];
  ranks_.end_message(rank);
  ranks_.timeline().tell(server.device, rank, [this, rank, bytes = partition.bytes] {
    client(rank).in_flight -= bytes;
    dispatch(rank);
  });
  server.arrived[static_cast<size_t>(rank)] += partition.bytes;
  raise_level(partition.server);
  const double each = static_cast<double>(partition.bytes) * ranks_.run().reduce_per_byte;
  if (options().asynchronous) {
    return queues_.work(partition.server, each, [this, rank, number] {
      calls_.added(rank, number);
      answer(rank, number);
    });
  }
  if (++pushes_[number] < workers_.size()) return;
  pushes_[number] = 0;
  const auto others = static_cast<double>(workers_.size() - 1);
  queues_.work(partition.server, each * others, [this, number] {
    for (const int worker : workers_) answer(worker, number);
  });
}

void PartitionSums::raise_level(size_t number) {
  auto& server = servers_[number];
  int64_t level = server.arrived[static_cast<size_t>(workers_.front())];
  for (const int worker : workers_) {
    level = std::min(level, server.arrived[static_cast<size_t>(worker)]);
  }
  if (lead_bytes_.empty() || level <= server.level) return;
  server.level = level;
  for (const int rank : workers_) {
    ranks_.timeline().tell(server.device, rank, [this, rank, number, level] {
      client(rank).levels[number] = level;
      dispatch(rank);
    });
  }
}

void PartitionSums::answer(int rank, size_t number) {
  const auto& partition = partitions_[number];
  const auto bytes = static_cast<double>(partition.bytes);
  ranks_.begin_message(rank);
  ranks_.timeline().send_beside(servers_[partition.server].device, rank, bytes,
                                [this, rank, number] { land(rank, number); });
}

void PartitionSums::land(int rank, size_t number) {
  const size_t bucket = partitions_[number].bucket;
  ranks_.end_message(rank);
  ranks_.count_received(rank, static_cast<double>(partitions_[number].bytes));
  if (--missing_[static_cast<size_t>(rank)][bucket] > 0) return;
  ranks_.record(rank, "communication", "bucket", client(rank).bucket_begin[bucket],
                static_cast<int>(bucket), ranks_.work().buckets[bucket].bytes);
  calls_.landed(rank, bucket);
}

}  // namespace troika::plan
