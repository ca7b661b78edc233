#include "troika/comm/group.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>
#include <utility>

#include "troika/base/error.h"
#include "troika/comm/core.h"

namespace troika::comm {

namespace {

template <size_t N>
void copy_text(char (&into)[N], std::string_view text) {
  const size_t length = std::min(text.size(), N - 1);
  if (length > 0) std::memcpy(into, text.data(), length);
  into[length] = 0;
}

// Copies "trainer.cpp:37"; a text that is too long keeps its end.
template <size_t N>
void copy_site(char (&into)[N], const std::source_location& site) {
  std::string_view file = site.file_name();
  if (const auto slash = file.rfind('/'); slash != file.npos) file.remove_prefix(slash + 1);
  constexpr size_t kLine = 9;  // a colon, up to seven digits, and the terminating zero
  file = file.substr(0, N - kLine);
  char* const colon = std::copy(file.begin(), file.end(), into);
  *colon = ':';
  *std::to_chars(colon + 1, into + N - 1, site.line()).ptr = 0;
}

Error usage(std::string what, std::string got, std::string expected) {
  return Error("comm", ErrorKind::usage,
               {.what = std::move(what), .got = std::move(got), .expected = std::move(expected)});
}

// Sums and products of booleans are "any" and "all"; a count would overflow a byte.
ReduceOp for_type(ReduceOp op, c10::ScalarType type) {
  require_reducible(type);
  if (type != c10::ScalarType::Bool) return op;
  if (op == ReduceOp::average) throw usage("cannot reduce", "the average of booleans", "numbers");
  if (op == ReduceOp::sum) return ReduceOp::max;
  return op == ReduceOp::product ? ReduceOp::min : op;
}

CallRequest make_request(Operation operation, const at::Tensor& data, const CallOptions& how,
                         const std::source_location& site) {
  CallRequest request;
  request.call.operation = operation;
  CollectiveFingerprint& fingerprint = request.call.fingerprint;
  fingerprint.operation = static_cast<int32_t>(operation);
  copy_text(fingerprint.label, how.label);
  copy_site(fingerprint.site, site);
  if (!data.defined()) return request;
  fingerprint.type = static_cast<int32_t>(data.scalar_type());
  fingerprint.count = data.numel();
  fingerprint.device = static_cast<int32_t>(data.device().type());
  request.call.type = data.scalar_type() == at::kBool ? at::kByte : data.scalar_type();
  return request;
}

void set_reduction(CallRequest& request, ReduceOp op, c10::ScalarType type, int size) {
  request.call.reduce_op = for_type(op, type);
  if (op == ReduceOp::average) request.call.divisor = size;
  request.call.fingerprint.reduce_op = static_cast<int32_t>(op);
}

void set_root(CallRequest& request, int root, int size) {
  if (root < 0 || root >= size) {
    throw usage("the root is not in the group", std::to_string(root),
                fmt::format("0 to {}", size - 1));
  }
  request.call.root = request.call.fingerprint.root = root;
}

int64_t row_elements(const at::Tensor& tensor) {
  return tensor.dim() == 0 || tensor.size(0) == 0 ? 1 : tensor.numel() / tensor.size(0);
}

// Returns the elements for each of n ranks: `tensor` split evenly, or `splits` of its rows.
std::vector<int64_t> cut(std::string_view what, const at::Tensor& tensor,
                         const std::vector<int64_t>& splits, int n) {
  if (splits.empty()) {
    if (tensor.numel() % n != 0) {
      throw usage(fmt::format("{} cannot be cut into equal blocks", what),
                  fmt::format("{} elements for {} ranks", tensor.numel(), n),
                  "a multiple, or splits");
    }
    return std::vector<int64_t>(static_cast<size_t>(n), tensor.numel() / n);
  }
  std::vector<int64_t> counts;
  int64_t total = 0;
  for (const int64_t rows : splits) {
    counts.push_back(rows * row_elements(tensor));
    total += counts.back();
  }
  if (splits.size() != static_cast<size_t>(n) || total != tensor.numel() ||
      std::ranges::any_of(splits, [](int64_t rows) { return rows < 0; })) {
    throw usage(fmt::format("{} and its splits do not fit together", what),
                fmt::format("{} splits of {} elements in all", splits.size(), total),
                fmt::format("{} of {}", n, tensor.numel()));
  }
  return counts;
}

void require_block(std::string_view what, const at::Tensor& block, int64_t count,
                   const at::Tensor& whole) {
  if (block.device() != whole.device()) {
    throw usage(fmt::format("{} is on another device than the whole", what), block.device().str(),
                whole.device().str());
  }
  if (block.numel() == count && block.scalar_type() == whole.scalar_type()) return;
  throw usage(fmt::format("{} does not hold one rank's block", what),
              fmt::format("{} x {}", c10::toString(block.scalar_type()), block.numel()),
              fmt::format("{} x {}", c10::toString(whole.scalar_type()), count));
}

uint64_t hash_of(const std::vector<int64_t>& splits) {
  uint64_t hash = splits.size();
  for (const int64_t rows : splits) {
    hash = (hash ^ static_cast<uint64_t>(rows)) * 0x100000001b3ull + 1;
  }
  return hash;
}

}  // namespace

Group::Group(std::shared_ptr<GroupImpl> impl, const GroupOptions& options)
    : core_(std::make_shared<Core>(std::move(impl), options)) {}

int Group::rank() const {
  return core_->impl().rank();
}
int Group::size() const {
  return core_->impl().size();
}
std::string_view Group::backend() const {
  return core_->impl().info().backend;
}
const std::vector<int>& Group::nodes() const {
  return core_->impl().info().nodes;
}
const GroupOptions& Group::options() const {
  return core_->options();
}

Counters Group::counters() const {
  const auto& traffic = core_->collectives().traffic();
  return {traffic.messages, traffic.bytes, traffic.messages_between_nodes,
          traffic.bytes_between_nodes, core_->bytes_of_messages()};
}

at::Tensor Group::links(Site site) const {
  core_->submit(make_request(Operation::measure_links, {}, {}, site), false);
  const Links& links = *core_->collectives().known_links();
  return at::tensor({links.inside.latency, links.inside.bandwidth, links.between.latency,
                     links.between.bandwidth, links.reduce_per_byte},
                    at::kDouble);
}

void Group::assume_links(const at::Tensor& links) const {
  if (links.scalar_type() != at::kDouble || links.sizes() != at::IntArrayRef{5}) {
    throw usage("links that no group has given",
                fmt::format("{} of {} numbers", c10::toString(links.scalar_type()), links.numel()),
                "what links() gave");
  }
  const auto values = links.contiguous();
  const double* v = values.data_ptr<double>();
  core_->collectives().assume(Links{{v[0], v[1]}, {v[2], v[3]}, v[4]});
}

void Group::place_ranks(const layout::Mesh& mesh) const {
  const auto& impl = core_->impl();
  if (impl.info().id == 0) impl.lifeline()->place_ranks(mesh);
}

Work Group::all_reduce(const at::Tensor& tensor, ReduceOp op, const CallOptions& how,
                       Site site) const {
  CallRequest request = make_request(Operation::all_reduce, tensor, how, site);
  set_reduction(request, op, tensor.scalar_type(), size());
  request.call.algorithm =
      how.algorithm == Algorithm::automatic ? options().algorithm : how.algorithm;
  request.call.fingerprint.algorithm = static_cast<int32_t>(request.call.algorithm);
  request.output = tensor;
  request.reads_output = true;
  return Work(core_->submit(std::move(request), how.async_op));
}

Work Group::reduce(const at::Tensor& tensor, int root, ReduceOp op, const CallOptions& how,
                   Site site) const {
  CallRequest request = make_request(Operation::reduce, tensor, how, site);
  set_reduction(request, op, tensor.scalar_type(), size());
  set_root(request, root, size());
  request.output = tensor;
  request.reads_output = true;
  request.writes_output = rank() == root;
  return Work(core_->submit(std::move(request), how.async_op));
}

Work Group::broadcast(const at::Tensor& tensor, int root, const CallOptions& how, Site site) const {
  CallRequest request = make_request(Operation::broadcast, tensor, how, site);
  set_root(request, root, size());
  request.output = tensor;
  request.reads_output = rank() == root;
  request.writes_output = rank() != root;
  return Work(core_->submit(std::move(request), how.async_op));
}

Work Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                           const std::vector<int64_t>& splits, const CallOptions& how,
                           Site site) const {
  CallRequest request = make_request(Operation::reduce_scatter, input, how, site);
  set_reduction(request, op, input.scalar_type(), size());
  request.call.input_counts = cut("reduce_scatter's input", input, splits, size());
  if (!splits.empty()) request.call.fingerprint.splits = hash_of(splits);
  require_block("reduce_scatter's output", output,
                request.call.input_counts[static_cast<size_t>(rank())], input);
  request.input = input;
  request.output = output;
  return Work(core_->submit(std::move(request), how.async_op));
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input,
                       const std::vector<int64_t>& splits, const CallOptions& how,
                       Site site) const {
  CallRequest request = make_request(Operation::all_gather, output, how, site);
  request.call.output_counts = cut("all_gather's output", output, splits, size());
  if (!splits.empty()) request.call.fingerprint.splits = hash_of(splits);
  require_block("all_gather's input", input,
                request.call.output_counts[static_cast<size_t>(rank())], output);
  request.input = input;
  request.output = output;
  return Work(core_->submit(std::move(request), how.async_op));
}

Work Group::gather(const at::Tensor& output, const at::Tensor& input, int root,
                   const CallOptions& how, Site site) const {
  CallRequest request = make_request(Operation::gather, input, how, site);
  set_root(request, root, size());
  request.input = input;
  if (rank() == root) {
    request.call.output_counts = cut("gather's output", output, {}, size());
    require_block("gather's input", input, request.call.output_counts.front(), output);
    request.output = output;
  }
  return Work(core_->submit(std::move(request), how.async_op));
}

Work Group::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                    const CallOptions& how, Site site) const {
  CallRequest request = make_request(Operation::scatter, output, how, site);
  set_root(request, root, size());
  request.output = output;
  if (rank() == root) {
    request.call.input_counts = cut("scatter's input", input, {}, size());
    require_block("scatter's output", output, request.call.input_counts.front(), input);
    request.input = input;
  }
  return Work(core_->submit(std::move(request), how.async_op));
}

Work Group::all_to_all(const at::Tensor& output, const at::Tensor& input,
                       const std::vector<int64_t>& output_splits,
                       const std::vector<int64_t>& input_splits, const CallOptions& how,
                       Site site) const {
  CallRequest request = make_request(Operation::all_to_all, input, how, site);
  if (output.scalar_type() != input.scalar_type()) {
    throw usage("all_to_all's output has another type than its input",
                c10::toString(output.scalar_type()), c10::toString(input.scalar_type()));
  }
  request.call.fingerprint.count = -1;
  request.call.input_counts = cut("all_to_all's input", input, input_splits, size());
  request.call.output_counts = cut("all_to_all's output", output, output_splits, size());
  request.input = input;
  request.output = output;
  return Work(core_->submit(std::move(request), how.async_op));
}

void Group::barrier(const CallOptions& how, Site site) const {
  core_->submit(make_request(Operation::barrier, {}, how, site), false);
}

Work Group::send(const at::Tensor& tensor, int peer, int tag, std::string_view label,
                 Site site) const {
  return Work(core_->send(
      tensor, peer, core_->make_fingerprint(Direction::send, peer, tag, kLargestTag, label, site)));
}

Work Group::receive(const at::Tensor& tensor, int peer, int tag, std::string_view label,
                    Site site) const {
  return Work(core_->receive(
      tensor, peer,
      core_->make_fingerprint(Direction::receive, peer, tag, kLargestTag, label, site)));
}

int Group::receive_any(const at::Tensor& tensor, int tag, std::string_view label, Site site) const {
  return core_->receive_any(tensor, tag, label, site);
}

Work Group::batch(const std::vector<PointToPoint>& messages, std::string_view label,
                  Site site) const {
  return Work(core_->batch(messages, label, site));
}

std::vector<std::string> Group::all_gather_text(const std::string& text, std::string_view label,
                                                Site site) const {
  const CallOptions how{.label = label};
  const auto lengths = at::zeros({size()}, at::kLong);
  all_gather(lengths, at::full({1}, static_cast<int64_t>(text.size()), at::kLong), {}, how, site);
  const std::vector<int64_t> splits(lengths.data_ptr<int64_t>(),
                                    lengths.data_ptr<int64_t>() + size());
  const auto own = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(own.data_ptr(), text.data(), text.size());
  const auto all =
      at::empty({std::accumulate(splits.begin(), splits.end(), int64_t{0})}, at::kByte);
  all_gather(all, own, splits, how, site);
  std::vector<std::string> texts;
  const auto* at = static_cast<const char*>(all.data_ptr());
  for (const int64_t length : splits) {
    texts.emplace_back(at, static_cast<size_t>(length));
    at += length;
  }
  return texts;
}

std::string Group::broadcast_text(const std::string& text, int root, std::string_view label,
                                  Site site) const {
  const CallOptions how{.label = label};
  const auto length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  broadcast(length, root, how, site);
  std::string result(static_cast<size_t>(length.item<int64_t>()), '\0');
  if (rank() == root) result = text;
  broadcast(at::from_blob(result.data(), {static_cast<int64_t>(result.size())}, at::kByte), root,
            how, site);
  return result;
}

at::Tensor Group::allocate(at::IntArrayRef shape, c10::ScalarType type) const {
  return core_->impl().allocate(c10::multiply_integers(shape), type).view(shape);
}

}  // namespace troika::comm
