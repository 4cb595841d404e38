from tenure.cli.main import main

main()
