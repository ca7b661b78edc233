#include "troika/parallel/sharded.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/memory_format.h"
#include "troika/nn/state.h"
#include "troika/nn/weight_layout.h"
#include "troika/parallel/block_parameters.h"
#include "troika/parallel/bucket_sums.h"
#include "troika/parallel/parameter_shards.h"
#include "troika/parallel/reducer.h"
#include "troika/parallel/replicas.h"

namespace troika::parallel {

namespace {

void require_possible(const ShardedOptions& options) {
  const auto& ddp = options.data_parallel;
  const auto refuse = [](const std::string& got, const std::string& expected) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "sharded data parallelism", .got = got, .expected = expected});
  };
  if (options.stage < 1 || options.stage > 3) {
    refuse("stage " + std::to_string(options.stage), "1, 2 or 3");
  }
  if (options.values && options.stage < 3) refuse("a module without values", "one, or stage 3");
  if (options.gathers_at_once && options.stage < 3) {
    refuse(fmt::format("parameters that are gathered in stage {}", options.stage), "stage 3");
  }
  if (ddp.hook || ddp.codec.name != "none") {
    refuse(ddp.hook ? "a hook" : "codec " + ddp.codec.name, "none");
  }
  if (!ddp.bucket_order.empty()) refuse("a bucket_order", "none: it is always the same");
}

nn::Model& model_of(torch::nn::Module& module) {
  auto* model = dynamic_cast<nn::Model*>(&module);
  if (!model) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "stage 3 gathers parameters block by block",
                 .got = "a module without blocks",
                 .expected = "a nn::Model",
                 .hint = "nn::from_sequential() makes one of a torch::nn::Sequential"});
  }
  model->verify();
  return *model;
}

bool gathers_blocks(const ShardedOptions& options) {
  return options.stage == 3 && !options.gathers_at_once;
}

bool is_hybrid(const comm::Group& group, const ShardedOptions& options) {
  return options.group_size > 0 && options.group_size < group.size();
}

comm::Group split_sharing(const comm::Group& group, const ShardedOptions& options) {
  require_possible(options);
  if (options.group_size < 0 ||
      (options.group_size > 0 && group.size() % options.group_size != 0)) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "ranks in each group of sharded data parallelism",
                 .got = fmt::format("groups of {} of {} ranks", options.group_size, group.size()),
                 .expected = "a number that divides that of ranks"});
  }
  if (!is_hybrid(group, options)) return group;
  return *group.split(group.rank() / options.group_size);
}

std::optional<comm::Group> split_copies(const comm::Group& group, const ShardedOptions& options) {
  if (!is_hybrid(group, options)) return std::nullopt;
  return group.split(group.rank() % options.group_size);
}

ReducerOptions reducer_options(const ShardedOptions& options, torch::nn::Module& module,
                               const std::optional<comm::Group>& copies) {
  const auto& ddp = options.data_parallel;
  return {.bucket_bytes = ddp.bucket_bytes,
          .first_bucket_bytes = ddp.first_bucket_bytes,
          .find_unused_parameters = ddp.find_unused_parameters,
          .static_graph = ddp.static_graph,
          .buckets = gathers_blocks(options) ? buckets_of_blocks(model_of(module))
                                             : std::vector<std::vector<std::string>>(),
          .keeps = options.stage == 1 ? Keeps::own_block : Keeps::own_block_only,
          .shard_multiple = options.shard_multiple,
          .copies = copies,
          .trace = ddp.trace};
}

}  // namespace

Sharded::Sharded(torch::nn::Module& module, comm::Group group, const ShardedOptions& options)
    : module_(module),
      watch_(module),
      group_(std::move(group)),
      options_(options),
      sharing_(split_sharing(group_, options_)),
      copies_(split_copies(group_, options_)) {
  // Shards cover elements in the order of dimensions, so the memory must have that order.
  const auto lay_out = [this] {
    nn::lay_out(module_, at::MemoryFormat::Contiguous);
    nn::lay_out_weights(module_, nn::WeightLayout::in_out);
  };
  auto* const values = options_.values;
  if (values) {
    values->record(lay_out);
    make_same(group_, module_, options_.data_parallel.copy_state, *values);
  } else {
    lay_out();
    make_same(group_, module_, options_.data_parallel.copy_state);
  }
  reducer_ = std::make_unique<Reducer>(sharing_, nn::trained_parameters(module_),
                                       reducer_options(options_, module_, copies_), BucketHook());
  std::vector<bool> releasable;
  for (const auto& bucket : reducer_->buckets()) {
    releasable.push_back(options_.stage == 3 && bucket.count >= options_.keep_elements);
  }
  std::vector<at::Tensor> kept;
  for (const auto& [name, tensor] : nn::named_state(module_)) {
    if (!tensor.requires_grad()) kept.push_back(tensor);
  }
  shards_ = std::make_unique<ParameterShards>(sharing_, reducer_->slots(), reducer_->buckets(),
                                              releasable, values, kept);
  if (!gathers_blocks(options_)) return;
  blocks_ = std::make_shared<BlockParameters>(model_of(module_), reducer_->slots(), *shards_);
  gathering_ = nn::WrapperGuard(model_of(module_), blocks_);
}

Sharded::~Sharded() {
  if (blocks_) blocks_->end();
}

std::vector<optim::Parameter> Sharded::parameters() const {
  return shards_->shards();
}

void Sharded::spread_parameters() {
  if (blocks_ && !blocks_->has_all()) blocks_->release_all();
  shards_->refresh();
}

void Sharded::gather_parameters() {
  if (blocks_) return;  // before each block
  shards_->gather_all();
}

void Sharded::release_parameters() {
  blocks_ ? blocks_->release_all() : shards_->release_all();
}

void Sharded::OverShards::sum(const at::Tensor& numbers, std::string_view label) const {
  if (sharded_.group_.rank() >= sharded_.sharing_.size()) numbers.zero_();
  sharded_.group_.all_reduce(numbers, comm::ReduceOp::sum, {.label = label});
}

void Sharded::OverShards::max(const at::Tensor& numbers, std::string_view label) const {
  sharded_.group_.all_reduce(numbers, comm::ReduceOp::max, {.label = label});
}

bool Sharded::begin_step(double weight) {
  const auto weights = gather_weights(group_, weight);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (total == 0) return false;
  const auto idle = std::find(weights.begin(), weights.end(), 0.0) - weights.begin();
  if (blocks_ && idle < group_.size()) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "in stage 3 all ranks make each pass together",
                 .got = "rank " + std::to_string(idle) + " without weight",
                 .expected = "some on every rank"});
  }
  buffers_from_ = static_cast<int>(
      std::find_if(weights.begin(), weights.end(), [](double w) { return w > 0; }) -
      weights.begin());
  const bool by_ranks = options_.data_parallel.divisor == Divisor::ranks;
  reducer_->set_factor(by_ranks ? weight : weight * group_.size() / total);
  return true;
}

void Sharded::finish_backward() {
  if (!watch_.is_unchanged()) {
    reducer_->check_unchanged(nn::trained_parameters(module_));
    watch_ = nn::ModuleWatch(module_);
  }
  reducer_->finish();
  release_parameters();
  shards_->take_gradients();
  const int root = std::exchange(buffers_from_, 0);
  if (options_.data_parallel.broadcast_buffers) {
    const TraceSpan span(options_.data_parallel.trace, "compute", "buffers");
    broadcast_packed(group_, watch_.buffers(), root, "module buffers");
  }
}

void Sharded::continue_step() {
  reducer_->continue_step();
}

bool Sharded::set_syncing(bool syncing) {
  const bool before = reducer_->syncing();
  reducer_->set_syncing(syncing);
  return before;
}

void Sharded::step_by(const std::function<void()>& update) {
  update();
  release_parameters();
  const TraceSpan span(options_.data_parallel.trace, "compute", "parameters");
  shards_->refresh();
}

void Sharded::synchronize_replicas() {
  blocks_ ? blocks_->gather_all() : shards_->gather_all();
  if (!options_.data_parallel.broadcast_buffers) {
    broadcast_packed(group_, module_.buffers(), 0, "module buffers");
  }
}

void Sharded::load_state(const optim::NamedTensors& state) {
  for (const auto& [name, tensor] : without_sums(state)) {
    if (name != kBucketOrder) refuse_state(name);
  }
  // Parameters that are present have the same values on all ranks: the module loaded them in place.
  shards_->take_parameters();
}

comm::Counters Sharded::counters() const {
  auto sum = group_.counters();
  const auto add = [&](const comm::Counters& more) {
    sum.messages += more.messages;
    sum.bytes += more.bytes;
    sum.messages_between_nodes += more.messages_between_nodes;
    sum.bytes_between_nodes += more.bytes_between_nodes;
  };
  add(shards_->counters());
  if (copies_) {
    add(sharing_.counters());
    add(copies_->counters());
  }
  return sum;
}

}  // namespace troika::parallel
