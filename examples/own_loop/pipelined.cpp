// Your own loop, cut into pipeline stages by adding the lines marked (+).
//
//   troika launch -n 2 ./pipelined        (or mpirun, srun, torchrun; or alone)
#include <torch/torch.h>
#include <troika/troika.h>  // (+)

#include <iostream>

int main() try {                             // (+)
  const auto world = troika::comm::world();  // (+)

  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(16, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 1));
  const auto mesh = troika::layout::Mesh(troika::layout::Axis::pipeline, world.size());  // (+)
  troika::parallel::Pipeline pipeline(troika::nn::from_sequential(model),                // (+)
                                      troika::comm::MeshGroups(world, mesh),             // (+)
                                      {.schedule = "1f1b", .micro_batches = 4});         // (+)
  torch::optim::SGD optimizer(pipeline.tensors(), torch::optim::SGDOptions(0.05).momentum(0.9));

  double loss_value = 0;
  for (int step = 0; step < 300; ++step) {
    const auto x = torch::randn({32, 16});  // the same on all ranks of a pipeline
    const auto y = (x.slice(1, 0, 8).sum(1, true) - x.slice(1, 8, 16).sum(1, true)) / 4;
    optimizer.zero_grad();
    const auto loss = pipeline.run(x, y, [](const at::Tensor& outputs, const at::Tensor& targets) {
      return torch::mse_loss(outputs, targets);
    });
    pipeline.step(optimizer);
    loss_value = loss.item<double>();  // the last stage's rank has the loss, the others have 0
  }

  if (world.rank() == world.size() - 1) {
    std::cout << world.size() << " stages, loss " << loss_value << std::endl;
  }
  return loss_value < 0.02 ? 0 : 1;
} catch (const std::exception& error) {  // (+)
  return troika::comm::end_with(error);  // (+)
}
