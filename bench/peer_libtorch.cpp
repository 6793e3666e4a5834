// The rows of `reprise bench` with libtorch, for `make bench`: prints NAME<TAB>NANOSECONDS, medians of groups of calls of at
// least 20 us, as cmd_bench.c measures its own. Built only where libtorch is installed; no part of the product.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void measure(const char *name, const std::function<void()> &call) {
    const double seconds = 0.5;
    std::vector<double> samples;
    size_t group = 1;
    double end = 0;
    for (int i = 0; i < 3; i++) {
        call();
    }
    while (samples.size() < 400 && (end == 0 || now() < end || samples.size() < 3)) {
        const double begin = now();
        for (size_t i = 0; i < group; i++) {
            call();
        }
        const double took = now() - begin;
        if (end == 0 && took < 20e-6) {
            group *= 2;
            continue;
        }
        if (end == 0) {
            end = now() + seconds;
        }
        samples.push_back(took / static_cast<double>(group));
    }
    std::sort(samples.begin(), samples.end());
    std::printf("%s\t%.3f\n", name, 1e9 * samples[samples.size() / 2]);
    std::fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        torch::set_num_threads(std::atoi(argv[1]));
    }
    torch::manual_seed(1);
    {
        torch::NoGradGuard no_grad;
        const auto a = torch::randn({16}), b = torch::randn({16}), x = torch::randn({10000});
        measure("add, 16 floats", [&] { torch::add(a, b); });
        measure("sin(2x), 10000 floats", [&] { torch::sin(x * 2); });
        torch::nn::Sequential mlp(torch::nn::Linear(10, 64), torch::nn::ReLU(), torch::nn::Linear(64, 10));
        const auto one = torch::randn({10}), batch = torch::randn({64, 10});
        measure("MLP 10-64-10, (10)", [&] { mlp->forward(one); });
        measure("MLP 10-64-10, (64, 10)", [&] { mlp->forward(batch); });
        const auto big = torch::randn({4096, 1024}), weight = torch::ones({1024}), bias = torch::zeros({1024});
        measure("softmax, 4096 x 1024", [&] { torch::softmax(big, -1); });
        measure("layer_norm, 4096 x 1024", [&] { torch::layer_norm(big, {1024}, weight, bias, 1e-5); });
        measure("sum, 4096 x 1024", [&] { torch::sum(big); });
    }
    torch::nn::Sequential mlp(torch::nn::Linear(10, 64), torch::nn::ReLU(), torch::nn::Linear(64, 10));
    torch::optim::Adam adam(mlp->parameters(), torch::optim::AdamOptions(1e-3));
    const auto batch = torch::randn({64, 10}), target = torch::randint(0, 10, {64}, torch::kLong);
    measure("MLP 10-64-10, (64, 10), Adam step", [&] {
        const auto loss = torch::nn::functional::cross_entropy(mlp->forward(batch), target);
        loss.backward();
        adam.step();
        adam.zero_grad();
    });
    return 0;
}
