#include "troika/compat/module_members.h"

#include <memory>
#include <string>

#include "troika/compat/torch.h"

namespace troika::compat {

namespace {

using torch::nn::Module;
using Tensors = torch::OrderedDict<std::string, at::Tensor>;
using Children = torch::OrderedDict<std::string, std::shared_ptr<Module>>;

// Private members in LibTorch 1.13 to 2.15: an explicit template instantiation may name them.
template <typename Tag, typename Tag::Member member>
struct Grant {
  friend typename Tag::Member member_of(Tag) { return member; }
};

struct Parameters {
  using Member = Tensors Module::*;
  friend Member member_of(Parameters);
};
struct Buffers {
  using Member = Tensors Module::*;
  friend Member member_of(Buffers);
};
struct ChildModules {
  using Member = Children Module::*;
  friend Member member_of(ChildModules);
};

template struct Grant<Parameters, &Module::parameters_>;
template struct Grant<Buffers, &Module::buffers_>;
template struct Grant<ChildModules, &Module::children_>;

}  // namespace

void for_each_member(const torch::nn::Module& module,
                     const std::function<void(const ModuleMember&)>& visit) {
  for (const auto& item : module.*member_of(Parameters())) visit({module, item.value(), false});
  for (const auto& item : module.*member_of(Buffers())) visit({module, item.value(), true});
  for (const auto& child : module.*member_of(ChildModules())) {
    for_each_member(*child.value(), visit);
  }
}

}  // namespace troika::compat
