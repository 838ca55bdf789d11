int simulated_dcgm_engine(int argc, char **argv);

int main(int argc, char **argv) { return simulated_dcgm_engine(argc, argv); }
