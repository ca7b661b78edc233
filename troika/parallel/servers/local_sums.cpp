#include "troika/parallel/servers/local_sums.h"

#include <algorithm>
#include <set>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/compat/torch.h"
#include "troika/parallel/servers/launched_world.h"

namespace troika::parallel {

namespace {

comm::Group machine_of(const comm::Group& group) {
  return *group.split(group.nodes()[static_cast<size_t>(group.rank())], group.rank());
}

std::optional<at::ScalarType> half_from(const std::string& form) {
  TROIKA_CHECK(form != "none", "no sums inside machines");
  if (form == "fp16") return at::kHalf;
  if (form == "bf16") return at::kBFloat16;
  return std::nullopt;
}

SummationOptions with_members(SummationOptions options, std::vector<int> members) {
  options.members = std::move(members);
  return options;
}

}  // namespace

std::vector<int> first_ranks(const std::vector<int>& nodes) {
  std::set<int> seen;
  std::vector<int> ranks;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    if (seen.insert(nodes[rank]).second) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

bool has_local_sums(const std::vector<int>& nodes, const layout::SummationExchange& sums) {
  const size_t machines = first_ranks(nodes).size();
  return machines > 1 && machines < nodes.size() && !sums.asynchronous && sums.local_sums != "none";
}

LocalSums::LocalSums(const comm::Group& group, SummationOptions options)
    : LocalSums(group, std::move(options), launched_role()) {}

LocalSums::LocalSums(const comm::Group& group, SummationOptions options,
                     const server::WorldOptions& role)
    : means_(machine_of(group)),
      // The servers divide by the number of machines.
      factor_(static_cast<double>(first_ranks(group.nodes()).size()) / group.size()),
      half_(half_from(options.sums.local_sums)),
      servers_(group, with_members(std::move(options), first_ranks(group.nodes())), role),
      thread_(std::make_unique<HookThread>(
          machine_of(group),
          [this](const comm::Group& machine, const comm::GradientBucket& bucket) {
            sum(machine, bucket);
          })) {}

LocalSums::~LocalSums() = default;

HookThread& LocalSums::thread() {
  TROIKA_CHECK(thread_, "no bucket was dropped before");
  return *thread_;
}

void LocalSums::lay_out(const std::vector<Bucket>& buckets) {
  servers_.lay_out(buckets);
  started_.assign(buckets.size(), nullptr);
}

void LocalSums::expect_rate(double rate) {
  thread().wait();
  servers_.expect_rate(rate);
}

void LocalSums::start(const Bucket& bucket) {
  started_[static_cast<size_t>(bucket.gradient.index)] = &bucket;
  thread().submit(bucket.gradient);
}

void LocalSums::sum(const comm::Group& machine, const comm::GradientBucket& bucket) {
  const at::NoGradGuard no_grad;
  const auto& flat = bucket.flat;
  flat.mul_(factor_);
  const auto values = half_ ? flat.to(*half_) : flat;
  machine.reduce(values, 0, comm::ReduceOp::sum, {.label = "sum inside a machine"});
  if (machine.rank() > 0) return;
  if (half_) flat.copy_(values);
  servers_.start(*started_[static_cast<size_t>(bucket.index)]);
}

void LocalSums::finish() {
  thread().wait();
  std::vector<size_t> left;
  for (size_t i = started_.size(); i-- > 0;) {
    if (started_[i]) left.push_back(i);
  }
  while (!left.empty()) std::erase(left, take_mean(left));
}

size_t LocalSums::finish_any(const std::vector<size_t>& buckets) {
  thread().wait();
  const auto found = std::ranges::find(buckets, take_mean(buckets));
  TROIKA_CHECK(found != buckets.end(), "a mean that this rank does not wait for");
  return static_cast<size_t>(found - buckets.begin());
}

size_t LocalSums::take_mean(const std::vector<size_t>& buckets) {
  const at::NoGradGuard no_grad;
  const auto which = at::zeros({1}, at::kLong);
  auto& bucket = *which.data_ptr<int64_t>();
  if (is_root()) bucket = static_cast<int64_t>(buckets[servers_.finish_any(buckets)]);
  means_.broadcast(which, 0, {.label = "next mean of a machine"});
  const auto index = static_cast<size_t>(bucket);
  TROIKA_CHECK(index < started_.size() && started_[index], "a mean of no bucket");
  const auto& flat = std::exchange(started_[index], nullptr)->gradient.flat;
  const auto values = half_ ? flat.to(*half_) : flat;
  means_.broadcast(values, 0, {.label = "mean inside a machine"});
  if (half_) flat.copy_(values);
  return index;
}

bool LocalSums::has_started() const {
  return std::ranges::any_of(started_, [](const auto* bucket) { return bucket; });
}

state::StateDict LocalSums::state() {
  if (!servers_.has_state() || !has_started()) return servers_.state();
  log::warn(
      "[parallel] a checkpoint lacks momentum and what codecs have left out: gradients are under "
      "way");
  return {};
}

void LocalSums::drop() {
  if (!has_started()) return;
  thread_.reset();  // nothing starts later
  std::ranges::fill(started_, nullptr);
  servers_.drop();
}

std::shared_ptr<BucketSums> make_summation(const comm::Group& group, SummationOptions options) {
  if (has_local_sums(group.nodes(), options.sums)) {
    return std::make_shared<LocalSums>(group, std::move(options));
  }
  return std::make_shared<SummationServers>(group, options);
}

}  // namespace troika::parallel
