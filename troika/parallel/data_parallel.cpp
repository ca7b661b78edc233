#include "troika/parallel/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/model.h"
#include "troika/nn/state.h"
#include "troika/parallel/bucket_sums.h"
#include "troika/parallel/cross_barrier.h"
#include "troika/parallel/reducer.h"
#include "troika/parallel/replicas.h"

namespace troika::parallel {

namespace {

constexpr std::string_view kCodec = "codec.";
// The rank that has saved the codec's state, and the size of its group.
constexpr const char* kCodecRanks = "codec_ranks";

}  // namespace

DataParallel::DataParallel(torch::nn::Module& module, comm::Group group,
                           const DataParallelOptions& options)
    : module_(module), watch_(module), group_(std::move(group)), options_(options) {
  if (options_.hook && options_.codec.name != "none") {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a hook takes the place of the codec",
                 .got = "a hook and codec " + options_.codec.name,
                 .expected = "one of them"});
  }
  if (options_.sums && (options_.hook || options_.codec.name != "none")) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "summation servers average plain gradients",
                 .got = options_.hook ? "a hook" : "codec " + options_.codec.name,
                 .expected = "neither hook nor codec"});
  }
  if (options_.crosses_barrier && (!options_.sums || !dynamic_cast<nn::Model*>(&module_))) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "blocks that wait for their own parameters",
                 .got = options_.sums ? "a module without blocks" : "no summation servers",
                 .expected = "a nn::Model whose gradients summation servers average"});
  }
  attach();
}

DataParallel::~DataParallel() {
  if (crossing_) crossing_->end();
}

void DataParallel::attach() {
  make_same(group_, module_, options_.copy_state);
  make_reducer();
}

void DataParallel::make_reducer() {
  if (crossing_) crossing_->finish();
  waiting_.reset();
  crossing_.reset();
  reducer_.reset();
  BucketHook hook = options_.hook;
  if (options_.codec.name != "none") {
    codec_ = comm::make_codec(options_.codec);
    hook = [codec = codec_](const comm::Group& group, const comm::GradientBucket& bucket) {
      codec->average(group, bucket);
    };
  }
  reducer_ = std::make_unique<Reducer>(
      group_, nn::trained_parameters(module_),
      ReducerOptions{.bucket_bytes = options_.bucket_bytes,
                     .first_bucket_bytes = options_.first_bucket_bytes,
                     .find_unused_parameters = options_.find_unused_parameters,
                     .static_graph = options_.static_graph,
                     .bucket_order = options_.bucket_order,
                     .sums = options_.sums,
                     .leaves_sums = options_.crosses_barrier,
                     .trace = options_.trace},
      std::move(hook));
  if (!options_.crosses_barrier || group_.size() == 1) return;
  auto& model = dynamic_cast<nn::Model&>(module_);
  crossing_ = std::make_shared<CrossBarrier>(model, *reducer_, *options_.sums);
  waiting_ = nn::WrapperGuard(model, crossing_);
}

void DataParallel::refresh() {
  if (!reducer_->syncing()) {
    throw Error(
        "parallel", ErrorKind::usage,
        {.what = "refresh() was called inside no_sync()", .hint = "it belongs between steps"});
  }
  options_.bucket_order.clear();
  attach();
}

void DataParallel::finish_backward() {
  // A step without a forward pass here has not waited for the last one.
  if (crossing_) crossing_->finish();
  if (!watch_.is_unchanged()) {
    reducer_->check_unchanged(nn::trained_parameters(module_));
    watch_ = nn::ModuleWatch(module_);
  }
  reducer_->finish();
  const int root = std::exchange(buffers_from_, 0);
  if (options_.broadcast_buffers) {
    const TraceSpan span(options_.trace, "compute", "buffers");
    broadcast_packed(group_, watch_.buffers(), root, "module buffers");
  }
}

void DataParallel::continue_step() {
  reducer_->continue_step();
}

bool DataParallel::set_syncing(bool syncing) {
  const bool before = reducer_->syncing();
  reducer_->set_syncing(syncing);
  return before;
}

void DataParallel::expect_rate(double rate) {
  if (options_.sums) options_.sums->expect_rate(rate);
}

bool DataParallel::begin_step(double weight) {
  const auto weights = gather_weights(group_, weight);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (total == 0) return false;
  buffers_from_ = static_cast<int>(
      std::find_if(weights.begin(), weights.end(), [](double w) { return w > 0; }) -
      weights.begin());
  reducer_->set_factor(options_.divisor == Divisor::ranks ? weight
                                                          : weight * group_.size() / total);
  return true;
}

std::vector<at::Tensor> DataParallel::gradients() const {
  require_means("gradients()");
  return reducer_->gradients();
}

std::vector<optim::Parameter> DataParallel::parameters() const {
  return trained_parameters(module_);
}

void DataParallel::require_means(const char* call) const {
  if (!reducer_->has_left_sums()) return;
  throw Error("parallel", ErrorKind::usage,
              {.what = fmt::format("{} in a step that does not wait for all means", call),
               .expected = "a call of fetch_states() before it, or no crosses_barrier"});
}

void DataParallel::step_by(const std::function<void()>& update) {
  reducer_->has_left_sums() ? crossing_->begin(update) : update();
}

void DataParallel::fetch_states() {
  if (crossing_) crossing_->finish();
}

void DataParallel::synchronize_replicas() {
  fetch_states();
  if (!options_.broadcast_buffers) {
    broadcast_packed(group_, module_.buffers(), 0, "module buffers");
  }
}

// Encodes the order as indices into the list of trained parameters.
optim::NamedTensors DataParallel::state() const {
  require_means("state()");
  optim::NamedTensors result;
  if (codec_) {
    state::append(result, std::string(kCodec), codec_->state());
    if (!result.empty()) {
      result.emplace_back(kCodecRanks, at::tensor({group_.rank(), group_.size()}, at::kLong));
    }
  }
  if (options_.sums) state::append(result, std::string(kStateOfSums), options_.sums->state());
  if (reducer_->order_is_final()) {
    std::map<std::string, int64_t> places;
    for (const auto& parameter : nn::trained_parameters(module_)) {
      places.emplace(parameter.first, static_cast<int64_t>(places.size()));
    }
    std::vector<int64_t> order;
    for (const auto& name : bucket_order()) order.push_back(places.at(name));
    result.emplace_back(kBucketOrder, at::tensor(order, at::kLong));
  }
  return result;
}

void DataParallel::load_state(const optim::NamedTensors& saved) {
  const auto state = options_.sums ? saved : without_sums(saved);
  state::StateDict codec_state, state_of_sums;
  double weight_of_errors = 1;
  std::vector<std::string> order;
  for (const auto& [name, tensor] : state) {
    if (codec_ && name.starts_with(kCodec)) {
      codec_state.emplace_back(name.substr(kCodec.size()), tensor);
      continue;
    }
    if (codec_ && name == kCodecRanks && tensor.numel() == 2 && tensor[1].item<int64_t>() > 0) {
      const bool is_own = tensor[0].item<int64_t>() == group_.rank();
      weight_of_errors = is_own ? group_.size() / tensor[1].item<double>() : 0;
      continue;
    }
    if (name.starts_with(kStateOfSums)) {
      state_of_sums.emplace_back(name.substr(kStateOfSums.size()), tensor);
      continue;
    }
    if (name != kBucketOrder) refuse_state(name);
    const auto parameters = nn::trained_parameters(module_);
    const auto places = tensor.to(at::kCPU, at::kLong).contiguous();
    for (int64_t i = 0; i < places.numel(); ++i) {
      const auto place = static_cast<size_t>(places.data_ptr<int64_t>()[i]);
      if (place >= parameters.size()) refuse_state(name);
      order.push_back(parameters[place].first);
    }
  }
  options_.bucket_order = order;
  make_reducer();
  if (codec_) codec_->load_state(codec_state, weight_of_errors);
  if (options_.sums) options_.sums->load_state(state_of_sums);
}

std::vector<std::string> DataParallel::bucket_order() const {
  return reducer_->order();
}

size_t DataParallel::bucket_count() const {
  return reducer_->buckets().size();
}

size_t DataParallel::launched() const {
  return reducer_->launched();
}

}  // namespace troika::parallel
