#include "troika/parallel/bucket_averages.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "troika/compat/torch.h"

namespace troika::parallel {

BucketAverages::BucketAverages(const comm::Group& group, const ReducerOptions& options,
                               std::vector<GradientSlot>& slots,
                               const std::vector<std::vector<size_t>>& members, BucketHook hook)
    : group_(group),
      options_(options),
      slots_(slots),
      buckets_(make_buckets(group_, slots_, members, options_.keeps, options_.shard_multiple)) {
  if (hook) {
    hook_ = std::make_unique<HookThread>(*group_.split(0), std::move(hook), options_.trace);
  }
  if (options_.sums) options_.sums->lay_out(buckets_);
}

BucketAverages::~BucketAverages() {
  if (options_.sums) options_.sums->drop();
}

void BucketAverages::rebuild(const std::vector<std::vector<size_t>>& members) {
  buckets_ = make_buckets(group_, slots_, members);
  if (options_.sums) options_.sums->lay_out(buckets_);
}

void BucketAverages::begin_step() {
  launched_ = 0;
  averaged_ = 0;
  taken_ = 0;
}

// Every rank launches buckets in the same order, so the wait here cannot depend on a bucket that
// this rank has still to launch.
void BucketAverages::open(Bucket& bucket) {
  constexpr int64_t kOpen = 2;
  if (bucket.gradient.flat.defined()) return;
  const auto count = [&] {
    return std::count_if(buckets_.begin(), buckets_.end(),
                         [](const Bucket& b) { return b.gradient.flat.defined(); });
  };
  while (taken_ < launched_ && count() >= kOpen) take_result(buckets_[taken_++]);
  open_bucket(group_, slots_, bucket);
}

void BucketAverages::mark_ready(const Bucket& bucket) const {
  if (!options_.trace) return;
  options_.trace->add({.track = "compute",
                       .name = "bucket ready",
                       .start = Clock::now(),
                       .end = {},
                       .bucket = bucket.gradient.index,
                       .bytes = static_cast<int64_t>(bucket.gradient.flat.nbytes())});
}

void BucketAverages::trace_average(const Bucket& bucket, const char* track,
                                   const comm::Work::Times& times) const {
  options_.trace->add({.track = track,
                       .name = "bucket",
                       .start = times.start,
                       .end = times.end,
                       .bucket = bucket.gradient.index,
                       .bytes = static_cast<int64_t>(bucket.gradient.flat.nbytes())});
}

// Launches strictly in order: ranks whose gradients arrive in another order would otherwise pair
// the wrong buckets.
void BucketAverages::launch_full(double factor, bool is_final_layout) {
  while (launched_ < buckets_.size() && buckets_[launched_].pending == 0) {
    launch(buckets_[launched_++], factor, is_final_layout);
    average_scattered();
  }
}

void BucketAverages::launch(Bucket& bucket, double factor, bool is_final_layout) {
  const auto& flat = bucket.gradient.flat;
  if (factor == 0) {
    flat.zero_();  // not a product: the loss over no samples may be NaN
  } else if (factor != 1) {
    flat.mul_(factor);
  }
  if (options_.sums) return options_.sums->start(bucket);
  if (hook_ && is_final_layout) {
    hook_->submit(bucket.gradient);
    return;
  }
  if (options_.keeps == Keeps::own_block_only && !bucket.own_block.defined()) {
    bucket.own_block = allocate_flat(group_, bucket.count / group_.size(), flat);
  }
  const auto start = Clock::now();
  const comm::CallOptions how{.label = bucket.label, .async_op = true};
  bucket.work =
      options_.keeps == Keeps::all
          ? group_.all_reduce(flat, comm::ReduceOp::average, how)
          : group_.reduce_scatter(bucket.own_block, flat, comm::ReduceOp::average, {}, how);
  // The group has no thread of its own (one rank, or a back end for one thread), so the call ran
  // here.
  if (options_.trace && bucket.work->done() && !bucket.work->times()) {
    trace_average(bucket, "compute", {start, Clock::now()});
  }
}

// Averages own_block over the copies, in the order of buckets, as for all collectives. Called after
// each launch: a group without a thread of its own runs calls here, and another order would
// deadlock.
void BucketAverages::average_scattered() {
  if (!options_.copies) return;
  while (averaged_ < launched_ && buckets_[averaged_].work->done()) {
    average_block(buckets_[averaged_++]);
  }
}

void BucketAverages::average_block(Bucket& bucket) {
  bucket.work->wait();
  bucket.copied = options_.copies->all_reduce(bucket.own_block, comm::ReduceOp::average,
                                              {.label = bucket.label, .async_op = true});
}

void BucketAverages::take_result(Bucket& bucket) {
  if (!bucket.work) return;  // the hook or `sums` averages it
  bucket.work->wait();
  if (options_.copies) {
    const auto index = static_cast<size_t>(bucket.gradient.index);
    while (averaged_ <= index) average_block(buckets_[averaged_++]);
  }
  const auto times = bucket.work->times();
  if (options_.trace && times) trace_average(bucket, "communication", *times);
  bucket.work.reset();
  if (options_.keeps == Keeps::own_block_only) close_bucket(slots_, bucket);
}

void BucketAverages::finish(bool waits_for_sums) {
  while (taken_ < launched_) take_result(buckets_[taken_++]);
  if (hook_) hook_->wait();
  if (options_.sums && waits_for_sums) options_.sums->finish();
  for (auto& bucket : buckets_) {
    if (const auto copied = std::exchange(bucket.copied, std::nullopt)) copied->wait();
  }
}

}  // namespace troika::parallel
