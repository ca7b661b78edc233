// Your own loop, made data-parallel by adding the lines marked (+).
//
//   troika launch -n 2 ./own_loop        (or mpirun, srun, torchrun; or alone)
#include <torch/torch.h>
#include <troika/troika.h>  // (+)

#include <iostream>

int main() try {                       // (+)
  auto group = troika::comm::world();  // (+)

  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(16, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 1));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  troika::parallel::DataParallel ddp(*model, group);  // (+)

  // Each rank draws its own part of the data: y is a fixed function of x.
  torch::manual_seed(1 + group.rank());  // (+)
  double loss_value = 0;
  for (int step = 0; step < 300; ++step) {
    const auto x = torch::randn({32, 16});
    const auto y = (x.slice(1, 0, 8).sum(1, true) - x.slice(1, 8, 16).sum(1, true)) / 4;
    const auto loss = torch::mse_loss(model->forward(x), y);
    optimizer.zero_grad();
    loss.backward();
    ddp.finish_backward();  // (+)
    optimizer.step();
    loss_value = loss.item<double>();
  }

  if (group.rank() == 0) {
    std::cout << group.size() << " ranks, loss " << loss_value << std::endl;
  }
  return loss_value < 0.02 ? 0 : 1;
} catch (const std::exception& error) {  // (+)
  return troika::comm::end_with(error);  // (+)
}
