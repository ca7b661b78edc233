#include "troika/parallel/servers/summation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <numeric>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/compat/torch.h"
#include "troika/layout/lead_bytes.h"
#include "troika/parallel/servers/embedded_world.h"
#include "troika/parallel/servers/group_error.h"
#include "troika/parallel/servers/launched_world.h"
#include "troika/parallel/servers/measured_links.h"

namespace troika::parallel {

namespace {

std::vector<int> members_of(const comm::Group& group, const SummationOptions& options) {
  if (!options.members.empty()) return options.members;
  std::vector<int> all(static_cast<size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

server::ValueType type_of(const at::Tensor& flat) {
  return flat.scalar_type() == at::kDouble ? server::ValueType::float64
                                           : server::ValueType::float32;
}

}  // namespace

SummationServers::SummationServers(const comm::Group& group, const SummationOptions& options)
    : SummationServers(group, options, launched_role()) {}

SummationServers::SummationServers(const comm::Group& group, const SummationOptions& options,
                                   const server::WorldOptions& role)
    : group_(group), options_(options), momentum_(options.sums.momentum) {
  const bool is_launched = role.role != server::WorldRole::alone;
  const int64_t spares = options_.servers.count;
  if (!is_launched && spares > 0) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "summation servers on spare machines are processes of their own",
                 .got = fmt::format("server.servers {}, and no launch of servers", spares),
                 .expected = "server.servers 0: one in each rank's process",
                 .hint = "troika launch --servers K --workers N starts them"});
  }
  const auto& links = options_.sums.links;
  const bool is_measured = links == layout::kMeasuredBandwidths;
  const auto members = members_of(group_, options_);
  const auto found = std::ranges::find(members, group_.rank());
  const auto workers = static_cast<int>(members.size());
  members_ = workers;
  shares_ =
      layout::split_by_links(layout::read_links(is_measured ? "" : links, workers, spares), spares)
          .shares();
  if (!is_launched && group_.size() == 1) return;
  server::WorldParts parts{.scheduler = scheduler_options(options_.servers),
                           .service = summation_service};
  parts.scheduler.takes_tables = true;  // there are none
  with_group_errors(group_, limit_of(options_.servers), [&] {
    if (is_launched) {
      auto own = role;
      own.has_server_beside = true;
      world_ = launched_world(group_, own, options_.servers, std::move(parts));
    } else {
      world_ = embedded_world(group_, options_.servers, std::move(parts));
    }
    auto& endpoint = world_->connected_endpoint(Deadline::after(group_.options().timeout));
    const auto among_members =
        is_measured ? group_.split(found == members.end() ? -1 : 0, group_.rank()) : std::nullopt;
    if (found == members.end()) return;
    server::SummationClientOptions own{
        .rank = static_cast<uint32_t>(found - members.begin()),
        .workers = static_cast<uint32_t>(workers),
        .servers = {},
        .credit_bytes = static_cast<size_t>(options_.sums.credit_bytes),
        .coding = options_.coding};
    for (int64_t i = 0; i < spares; ++i) own.servers.push_back(fmt::format("server-{}", i));
    for (const int rank : members) own.servers.push_back(fmt::format("server-{}", spares + rank));
    if (among_members) {
      link_rates_ = measure_links(*among_members, endpoint, own.servers);
      shares_ = layout::split_by_links(link_rates_, spares).shares();
    }
    for (const double share : shares_) {
      // Workers whose updates are added at once do not keep together.
      if (options_.sums.asynchronous) break;
      own.lead_bytes.push_back(
          static_cast<size_t>(layout::lead_bytes(share, options_.sums.partition_bytes)));
    }
    client_ = std::make_unique<server::SummationClient>(endpoint, std::move(own));
  });
}

SummationServers::~SummationServers() {
  client_.reset();
  // A rank that has failed does not wait for others.
  if (!world_ || std::uncaught_exceptions() > 0) return;
  try {
    world_->leave(Deadline::after(2 * limit_of(options_.servers)));
  } catch (const Error& error) {
    log::warn("the summation servers: {}", error.what());
  }
}

void SummationServers::lay_out(const std::vector<Bucket>& buckets) {
  std::vector<int64_t> bytes;
  for (const auto& bucket : buckets) {
    const auto& flat = bucket.gradient.flat;
    const auto type = flat.scalar_type();
    if (!flat.is_cpu() || (type != at::kFloat && type != at::kDouble)) {
      throw Error("parallel", ErrorKind::usage,
                  {.what = "gradients for summation servers",
                   .got = fmt::format("{} on {}", c10::toString(type), flat.device().str()),
                   .expected = "float32 or float64 on the CPU"});
    }
    bytes.push_back(static_cast<int64_t>(flat.nbytes()));
  }
  partitions_ = layout::partition_sums(bytes, options_.sums.partition_bytes, shares_);
  laid_.clear();
  size_t end = 0;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const auto& flat = buckets[i].gradient.flat;
    const size_t first = end;
    while (end < partitions_.size() && partitions_[end].bucket == i) ++end;
    laid_.push_back({.count = flat.numel(), .type = type_of(flat), .first = first, .end = end});
    for (size_t p = 0; p < buckets[i].gradient.names.size(); ++p) {
      const auto& part = buckets[i].gradient.parts[p];
      laid_.back().parts.push_back({.name = buckets[i].gradient.names[p],
                                    .offset = part.storage_offset() - flat.storage_offset(),
                                    .sizes = part.sizes().vec(),
                                    .strides = part.strides().vec()});
    }
  }
  layout_ ^= server::kLayoutBit;
  missing_ = std::make_shared<std::vector<size_t>>(buckets.size());
  if (client_) momentum_.lay_out(buckets);
}

void SummationServers::expect_rate(double rate) {
  if (!options_.coding.error_feedback) return;
  if (!std::isfinite(rate) || rate < 0) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a codec with error feedback scales errors with the learning rate",
                 .got = fmt::format("a rate of {}", rate),
                 .expected = "a number from 0 on",
                 .hint = "ddp.error_feedback false takes any rate"});
  }
  rate_ = rate;
}

void SummationServers::start(const Bucket& bucket) {
  if (rate_ > 0 || !rate_of_errors_) rate_of_errors_ = rate_;
  momentum_.apply(bucket);
  push(bucket, server::SummationAction::sum);
}

void SummationServers::exchange(const std::vector<Bucket>& buckets,
                                server::SummationAction action) {
  if (!client_) return;
  for (const auto& bucket : buckets) push(bucket, action);
  finish();
}

void SummationServers::push(const Bucket& bucket, server::SummationAction action) {
  const auto index = static_cast<size_t>(bucket.gradient.index);
  const auto& flat = bucket.gradient.flat;
  const auto& laid = laid_[index];
  (*missing_)[index] = laid.end - laid.first;  // no callback is under way for it
  const auto done = [missing = missing_, index, bytes = static_cast<int64_t>(flat.nbytes()),
                     begin = Clock::now(), trace = options_.trace] {
    if (--(*missing)[index] > 0 || !trace) return;
    trace->add({.track = "communication",
                .name = "bucket",
                .start = begin,
                .end = Clock::now(),
                .bucket = static_cast<int64_t>(index),
                .bytes = bytes});
  };
  push(index, static_cast<char*>(flat.data_ptr()), action, done);
}

void SummationServers::push(size_t bucket, char* values, server::SummationAction action,
                            const std::function<void()>& done) {
  std::vector<server::SummationPiece> pieces;
  for (size_t i = laid_[bucket].first; i < laid_[bucket].end; ++i) {
    const auto& partition = partitions_[i];
    // Gradients come in the reverse of the order in which the next forward pass uses parameters.
    pieces.push_back({.key = layout_ | i,
                      .server = partition.server,
                      .priority = options_.sums.priorities ? static_cast<int64_t>(i) : 0,
                      .type = laid_[bucket].type,
                      .action = action,
                      .values = {values + partition.offset, static_cast<size_t>(partition.bytes)},
                      .done = done,
                      .rate = rate_});
  }
  client_->push(std::move(pieces));
}

at::Tensor SummationServers::zeros_like_bucket(size_t bucket) const {
  const bool is_double = laid_[bucket].type == server::ValueType::float64;
  return at::zeros({laid_[bucket].count}, is_double ? at::kDouble : at::kFloat);
}

void SummationServers::finish() {
  if (client_) wait({});
}

size_t SummationServers::finish_any(const std::vector<size_t>& buckets) {
  size_t first = buckets.size();
  wait([&] {
    const auto found =
        std::ranges::find_if(buckets, [&](size_t bucket) { return (*missing_)[bucket] == 0; });
    first = static_cast<size_t>(found - buckets.begin());
    return found != buckets.end();
  });
  return first;
}

void SummationServers::wait(const std::function<bool()>& is_enough) {
  const auto limit = limit_of(options_.servers);
  with_group_errors(group_, limit, [&] {
    client_->wait(
        Deadline::after(group_.options().timeout), [&] { return world_->trouble(limit); },
        is_enough);
  });
}

void SummationServers::drop() {
  if (client_) client_->drop();
}

server::SummationTraffic SummationServers::traffic() {
  return client_ ? client_->traffic() : server::SummationTraffic{};
}

server::SummationTraffic SummationServers::traffic(size_t server) {
  return client_ ? client_->traffic(server) : server::SummationTraffic{};
}

}  // namespace troika::parallel
